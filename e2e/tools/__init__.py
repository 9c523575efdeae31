"""The real programs that the lab runs, pinned as Go modules and built once.

Each folder beside this file is one Go module whose ``tool`` lines name the programs; ``build`` turns a folder into a
directory of binaries in the cache. The groups are apart because their requirements conflict.
"""
