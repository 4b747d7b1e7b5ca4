-- The layouts of what NVTX ranges carry (extended payloads).
--
-- Every process registers its own; the export does not record whose they are.
--
-- requires: NVTX_PAYLOAD_SCHEMAS(domainId, schemaId, payloadSize)
SELECT DISTINCT
    layout.domainId AS domain,  -- NVTX domain, numbered by process
    layout.schemaId AS schema,  -- number of the layout in it
    layout.payloadSize AS size  -- bytes; NULL where they differ
FROM NVTX_PAYLOAD_SCHEMAS AS layout
ORDER BY layout.domainId, layout.schemaId, layout.payloadSize
