"""Topics to lake tables: Delta and Iceberg, on local or shared disks.

::

    from halfmoon.spark import LakeTable, from_ddl, ingest, layout_for

    table = LakeTable("lake/orders", kind="delta")
    layout = layout_for("lake/orders", decode="json", schema=from_ddl("id bigint, total double"), partition="day")
    ingest(session, table, layout, {"endpoints": "127.0.0.1:9876", "topic": "orders"})
    table.read(session).show()

Needs the extra ``halfmoon[spark]``, and ``halfmoon[lake]`` for Delta, Iceberg and Avro. Nothing is imported here, for
workers import only `files`.
"""
