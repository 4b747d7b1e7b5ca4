-- The fields of the extended payloads of NVTX ranges, by layout, in the order of the layout.
--
-- requires: NVTX_PAYLOAD_SCHEMA_ENTRIES(domainId, schemaId, idx, type, name, offset)
SELECT DISTINCT
    entry.domainId AS domain,  -- NVTX domain, numbered by process
    entry.schemaId AS schema,  -- number of its layout
    entry.idx AS place,  -- position of the field in the layout
    entry.type AS type,  -- NVTX_PAYLOAD_ENTRY_TYPE_*, or a registered type
    entry.name AS name,  -- name that the library gives it
    entry."offset" AS at  -- bytes from the beginning; NULL if it follows from the fields before
FROM NVTX_PAYLOAD_SCHEMA_ENTRIES AS entry
ORDER BY entry.domainId, entry.schemaId, entry.idx
