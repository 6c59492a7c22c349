-- Mean of large numbers.
SELECT avg(user_id) AS a
FROM hits
