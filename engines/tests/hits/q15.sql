-- Groups of two keys, one a text; top ones.
SELECT search_engine_id, search_phrase, count(*) AS c
FROM hits
WHERE search_phrase <> ''
GROUP BY search_engine_id, search_phrase
ORDER BY c DESC, search_engine_id, search_phrase
LIMIT 10
