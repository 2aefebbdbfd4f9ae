"""The public face: one module for each public module, with its names and nothing else.

It is the room on top. No room imports it; ``ropewalk/__init__.py`` says which module has the names
of which package.
"""
