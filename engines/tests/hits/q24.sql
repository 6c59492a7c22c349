-- Top-k of a time.
SELECT search_phrase
FROM hits
WHERE search_phrase <> ''
ORDER BY event_time, watch_id
LIMIT 10
