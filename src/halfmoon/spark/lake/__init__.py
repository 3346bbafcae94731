"""Topics to lake tables: Delta and Iceberg, on local or shared disks.

::

    from halfmoon.spark.lake import schemas
    from halfmoon.spark.lake.files import layout_for
    from halfmoon.spark.lake.ingest import ingest
    from halfmoon.spark.lake.table import LakeTable

    table = LakeTable("lake/orders", kind="delta")
    layout = layout_for("lake/orders", decode="json", schema=schemas.from_ddl("id bigint, total double"), partition="day")
    ingest(session, table, layout, {"endpoints": "127.0.0.1:9876", "topic": "orders"})
    table.read(session).show()

Needs the extra ``halfmoon[spark]``, and ``halfmoon[lake]`` for Delta, Iceberg and Avro. Nothing is imported here, for
workers import only `files`.
"""
