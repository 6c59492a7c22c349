-- Groups of two keys, with means.
SELECT search_engine_id, client_ip, count(*) AS c, sum(is_refresh) AS r, avg(resolution_width) AS w
FROM hits
WHERE search_phrase <> ''
GROUP BY search_engine_id, client_ip
ORDER BY c DESC, search_engine_id, client_ip
LIMIT 10
