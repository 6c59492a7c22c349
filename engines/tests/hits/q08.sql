-- Few groups under a selective filter.
SELECT adv_engine_id, count(*) AS c
FROM hits
WHERE adv_engine_id <> 0
GROUP BY adv_engine_id
ORDER BY c DESC, adv_engine_id
