-- Two patterns and groups.
SELECT search_phrase, min(url) AS url, min(title) AS title, count(*) AS c, count(DISTINCT user_id) AS u
FROM hits
WHERE title LIKE '%google%' AND url NOT LIKE '%.example7.%' AND search_phrase <> ''
GROUP BY search_phrase
ORDER BY c DESC, search_phrase
LIMIT 10
