"""Every command of Apache's admin tool (4.9.7), run against Apache's servers and against ours: both print the same.

`commands` is the table of calls, `scenario` what both servers are given first, `masks` what of a print is not compared.
"""
