"""Floor 9, Python's side of the commands: the functions of `import iosim`, with the commands' options as keywords.

Imports evidence and all below; never the commands, which stand beside it. Not for anything that computes: these
functions read keywords, and call a room below.
"""
