-- Filter for six hours: the statistics exclude most row groups.
SELECT sum(price) AS s, count(*) AS c
FROM hits
WHERE event_time >= TIMESTAMP '2013-07-09 12:00:00' AND event_time < TIMESTAMP '2013-07-09 18:00:00' AND region_id IN (0, 1, 2, 3, 5, 8, 13)
