-- Groups of two keys, one a text.
SELECT mobile_phone, mobile_phone_model, count(DISTINCT user_id) AS u
FROM hits
WHERE mobile_phone_model <> ''
GROUP BY mobile_phone, mobile_phone_model
ORDER BY u DESC, mobile_phone, mobile_phone_model
LIMIT 10
