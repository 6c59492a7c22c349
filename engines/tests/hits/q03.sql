-- Ungrouped aggregates.
SELECT sum(adv_engine_id) AS s, count(*) AS c, avg(resolution_width) AS w
FROM hits
