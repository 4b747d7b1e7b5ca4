-- The codes for the four kinds of NVTX ranges in this export.
--
-- requires: ENUM_NSYS_EVENT_TYPE(id, name)
SELECT
    kind.name AS name,  -- for example NvtxPushPopRange
    kind.id AS id  -- NVTX_EVENTS.eventType
FROM ENUM_NSYS_EVENT_TYPE AS kind
WHERE
    kind.id IS NOT NULL
    AND kind.name IN (
        'NvtxPushPopRange', 'NvtxStartEndRange', 'NvtxtPushPopRange', 'NvtxtStartEndRange'
    )
ORDER BY kind.id
