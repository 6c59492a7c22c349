-- A pattern and groups.
SELECT search_phrase, min(url) AS url, count(*) AS c
FROM hits
WHERE url LIKE '%google%' AND search_phrase <> ''
GROUP BY search_phrase
ORDER BY c DESC, search_phrase
LIMIT 10
