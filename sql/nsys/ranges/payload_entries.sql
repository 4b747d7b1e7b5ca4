-- The fields of what NVTX ranges carry (extended payloads), each layout's in their order.
--
-- requires: NVTX_PAYLOAD_SCHEMA_ENTRIES(domainId, schemaId, idx, type, name, offset)
SELECT DISTINCT
    entry.domainId AS domain,  -- NVTX domain, numbered by process
    entry.schemaId AS schema,  -- number of the layout in it
    entry.idx AS place,  -- of the field in the layout
    entry.type AS type,  -- NVTX_PAYLOAD_ENTRY_TYPE_*, or a registered type
    entry.name AS name,  -- what the library calls it
    entry."offset" AS at  -- bytes from the begin; NULL where it follows from those before
FROM NVTX_PAYLOAD_SCHEMA_ENTRIES AS entry
ORDER BY entry.domainId, entry.schemaId, entry.idx
