-- Fields in the payload layouts of NVTX ranges, layout by layout, in field order.
--
-- requires: NVTX_PAYLOAD_SCHEMA_ENTRIES(domainId, schemaId, idx, type, name, offset)
SELECT DISTINCT
    entry.domainId AS domain,  -- NVTX domain id, unique within a process only
    entry.schemaId AS schema,  -- layout id
    entry.idx AS place,  -- index of the field in the layout
    entry.type AS type,  -- NVTX_PAYLOAD_ENTRY_TYPE_*, or a registered type
    entry.name AS name,  -- name of the field, given by the library
    entry."offset" AS at  -- offset in bytes, or NULL if determined by the previous field
FROM NVTX_PAYLOAD_SCHEMA_ENTRIES AS entry
ORDER BY entry.domainId, entry.schemaId, entry.idx
