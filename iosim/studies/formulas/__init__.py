"""A kernel's bytes in closed form as a person reads them: with numbers put in, the symbols named, beside the papers.

`study` does it; a command line loads `names` alone, so nothing is imported here.
"""
