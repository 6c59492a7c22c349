-- Many groups.
SELECT user_id, count(*) AS c
FROM hits
GROUP BY user_id
ORDER BY c DESC, user_id
LIMIT 10
