-- Rows of a single user, who is rare.
SELECT watch_id, user_id
FROM hits
WHERE user_id = 1000000007
ORDER BY watch_id
LIMIT 100
