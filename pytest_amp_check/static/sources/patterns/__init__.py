"""Byte patterns for the prescan: a search in the bytes of code, so that most files need no parsing.

Parsing is most of the work, and few files of a project train. The search expects common spelling: names in ASCII, on
one line, and the bracket directly behind the name of a method.
"""
