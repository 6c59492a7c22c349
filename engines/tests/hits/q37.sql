-- Decimals by day.
SELECT event_date, count(*) AS c, sum(price) AS s, count(referer) AS r
FROM hits
WHERE is_link = 1
GROUP BY event_date
ORDER BY event_date
