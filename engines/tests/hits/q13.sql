-- Text groups, top ones.
SELECT search_phrase, count(*) AS c
FROM hits
WHERE search_phrase <> ''
GROUP BY search_phrase
ORDER BY c DESC, search_phrase
LIMIT 10
