-- Several aggregates in groups.
SELECT region_id, sum(adv_engine_id) AS s, count(*) AS c, avg(resolution_width) AS w, count(DISTINCT user_id) AS u
FROM hits
GROUP BY region_id
ORDER BY c DESC, region_id
LIMIT 10
