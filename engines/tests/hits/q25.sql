-- Top-k of a text.
SELECT search_phrase
FROM hits
WHERE search_phrase <> ''
ORDER BY search_phrase
LIMIT 10
