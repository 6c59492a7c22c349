-- Distinct in groups.
SELECT region_id, count(DISTINCT user_id) AS u
FROM hits
GROUP BY region_id
ORDER BY u DESC, region_id
LIMIT 10
