-- Distinct, many.
SELECT count(DISTINCT user_id) AS c
FROM hits
