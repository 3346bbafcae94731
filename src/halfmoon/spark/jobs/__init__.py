"""Jobs on topics and tables: audits of transactions and delays, dead letters, traces, lag, SQL, replay.

Each is a function that takes a session and returns DataFrames or a summary; `halfmoon spark …` prints what they return. What joins
and judges works on DataFrames of the source's schema (`spark.source.rows.SCHEMA`) and asks no broker, so that it can be run on
archived tables as well.
"""
