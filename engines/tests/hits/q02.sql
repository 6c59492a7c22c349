-- Filter that few rows pass.
SELECT count(*)
FROM hits
WHERE adv_engine_id <> 0
