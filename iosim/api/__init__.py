"""Floor 7, Python's side of the commands: the functions of `import iosim`, with the commands' options as keywords.

Imports studies and all below. Not for anything that computes: these functions read keywords, and call a room below.
"""
