"""Jobs on topics and tables: audits of transactions and delays, lag, SQL, replay.

Each is a function that returns DataFrames or a summary, which `halfmoon spark …` prints. Joins and verdicts work on DataFrames of
the source's schema (`data.rows.SCHEMA`) and ask no broker, so they run on archived tables as well. Commands on few messages
(dead letters, traces) are not here: they use the administration client.
"""
