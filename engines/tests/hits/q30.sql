-- As many groups as rows.
SELECT watch_id, client_ip, count(*) AS c, sum(is_refresh) AS r, avg(resolution_width) AS w
FROM hits
GROUP BY watch_id, client_ip
ORDER BY c DESC, watch_id, client_ip
LIMIT 10
