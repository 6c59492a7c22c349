-- Filter for one day, and groups by the minute.
SELECT date_trunc('minute', event_time) AS m, count(*) AS views
FROM hits
WHERE event_date = DATE '2013-07-14' AND is_refresh = 0
GROUP BY m
ORDER BY m
LIMIT 10 OFFSET 100
