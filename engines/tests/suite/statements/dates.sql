-- Days, moments and intervals, in UTC.

SELECT id, d FROM days WHERE id < 12 ORDER BY id;
SELECT id, moment, ms FROM days WHERE id < 10 ORDER BY id;
SELECT id, zoned FROM days WHERE id BETWEEN 20 AND 28 ORDER BY id;
SELECT min(d), max(d), min(moment), max(moment), min(zoned), max(zoned), min(ms), max(ms) FROM days;

--! for part: year | month | day | quarter | week | doy | dow
SELECT id, extract({part} FROM d) FROM days WHERE id < 16 OR id BETWEEN 100 AND 110 ORDER BY id;
--! for part: year | month | day | hour | minute
SELECT id, extract({part} FROM moment) FROM days WHERE id BETWEEN 30 AND 42 ORDER BY id;
--! for part: year | hour
SELECT id, extract({part} FROM zoned) FROM days WHERE id BETWEEN 20 AND 30 ORDER BY id;
SELECT id, date_part('month', d), date_part('hour', ms) FROM days WHERE id BETWEEN 46 AND 56 ORDER BY id;
SELECT extract(year FROM d) AS y, count(*) FROM days GROUP BY y;
SELECT extract(month FROM d) AS m, count(*), min(d), max(d) FROM days WHERE d > DATE '2000-01-01' AND d < DATE '2002-01-01' GROUP BY m;
SELECT extract(hour FROM moment) AS h, count(*) FROM days GROUP BY h;

--! for unit: year | quarter | month | week | day
SELECT id, CAST(date_trunc('{unit}', d) AS DATE) FROM days WHERE id < 6 OR id BETWEEN 60 AND 66 ORDER BY id;
--! for unit: year | quarter | month | week | day | hour | minute | second
SELECT id, date_trunc('{unit}', moment) FROM days WHERE id BETWEEN 40 AND 46 ORDER BY id;
SELECT id, date_trunc('day', zoned), date_trunc('hour', zoned) FROM days WHERE id BETWEEN 22 AND 28 ORDER BY id;
SELECT CAST(date_trunc('month', d) AS DATE) AS m, count(*) FROM days WHERE d >= DATE '2000-06-01' AND d < DATE '2001-06-01' GROUP BY m ORDER BY m;
SELECT date_trunc('day', moment) AS t, count(*), min(id) FROM days GROUP BY t ORDER BY t NULLS FIRST;

SELECT id, d + 1, d - 1, d + 365 FROM days WHERE id < 6 ORDER BY id;
SELECT id, d - e, e - d FROM days WHERE id BETWEEN 8 AND 20 ORDER BY id;
SELECT id, d - DATE '2000-01-01' FROM days WHERE id BETWEEN 8 AND 20 ORDER BY id;
SELECT id, CAST(d + INTERVAL '1 day' AS DATE), CAST(d - INTERVAL '1 day' AS DATE) FROM days WHERE id < 6 ORDER BY id;
SELECT id, CAST(d + INTERVAL '1 month' AS DATE), CAST(d - INTERVAL '1 month' AS DATE) FROM days WHERE id BETWEEN 19 AND 32 ORDER BY id;
SELECT id, CAST(d + INTERVAL '1 year' AS DATE), CAST(d - INTERVAL '4 years' AS DATE) FROM days WHERE id IN (4, 5, 30, 31, 32) ORDER BY id;
SELECT id, moment + INTERVAL '90 minutes', moment - INTERVAL '1 hour' FROM days WHERE id < 6 ORDER BY id;
SELECT id, moment + INTERVAL '1 month', moment + INTERVAL '2 days' FROM days WHERE id BETWEEN 40 AND 45 ORDER BY id;
SELECT id, ms + INTERVAL '10 seconds' FROM days WHERE id < 4 ORDER BY id;
SELECT CAST(DATE '2000-01-31' + INTERVAL '1 month' AS DATE), CAST(DATE '2001-01-31' + INTERVAL '1 month' AS DATE), CAST(DATE '2000-02-29' + INTERVAL '1 year' AS DATE);
SELECT CAST(DATE '1998-12-01' - INTERVAL '90' DAY AS DATE), CAST(DATE '1994-01-01' + INTERVAL '1' YEAR AS DATE);
SELECT DATE '2000-03-01' - DATE '2000-02-28' AS leap, DATE '1900-03-01' - DATE '1900-02-28' AS common;
SELECT TIMESTAMP '2000-01-01 00:00:00' + INTERVAL '1 second', TIMESTAMP '1970-01-01 00:00:00' - INTERVAL '1 millisecond';
SELECT make_date(2020, 2, 29), make_date(1970, 1, 1);

--! for f: d = DATE '2000-02-29' | d < DATE '1970-01-01' | d > DATE '2003-01-01' | d BETWEEN DATE '2000-01-01' AND DATE '2000-12-31' | d >= DATE '2001-01-01' AND d < DATE '2001-02-01' | d IN (DATE '1970-01-01', DATE '2100-02-28') | d IS NULL | d <> e | d < e | d = e | extract(dow FROM d) = 0 | extract(month FROM d) = 2 AND extract(day FROM d) = 29 | d + 10 > e | CAST(moment AS DATE) = DATE '2000-01-03'
SELECT count(*), min(id), max(id) FROM days WHERE {f};
--! for f: moment < TIMESTAMP '2000-01-01 00:00:00' | moment >= TIMESTAMP '2000-01-05 12:00:00' | moment = TIMESTAMP '2000-01-01 00:14:00.001998' | moment BETWEEN TIMESTAMP '2000-01-02 00:00:00' AND TIMESTAMP '2000-01-03 00:00:00' | moment > ms | moment < DATE '2000-01-02' | ms > moment + INTERVAL '1 day'
SELECT count(*), min(id), max(id) FROM days WHERE {f};
SELECT count(*), min(id) FROM days WHERE zoned > TIMESTAMP '2000-03-01 00:00:00+00:00';
SELECT count(*), min(id) FROM days WHERE zoned > TIMESTAMPTZ '2000-03-01 00:00:00+05:00';

SELECT id, CAST(d AS TIMESTAMP), CAST(moment AS DATE), CAST(ms AS DATE) FROM days WHERE id BETWEEN 22 AND 28 ORDER BY id;
SELECT id, CAST(d AS VARCHAR), CAST(CAST(d AS VARCHAR) AS DATE) = d FROM days WHERE id < 6 ORDER BY id;
SELECT CAST('2024-02-29' AS DATE), CAST('2024-02-29 12:34:56' AS TIMESTAMP), CAST('2024-02-29 12:34:56.789' AS TIMESTAMP), CAST('1969-12-31 23:59:59.999999' AS TIMESTAMP);
--! for bad: CAST('2001-02-29' AS DATE) | CAST('not a day' AS DATE) | CAST('2001-13-01 00:00:00' AS TIMESTAMP) | CAST('25:00' AS TIMESTAMP)
--! error
SELECT {bad};

SELECT id, d FROM days ORDER BY d NULLS FIRST, id LIMIT 12;
SELECT id, d FROM days ORDER BY d DESC NULLS LAST, id LIMIT 6;
SELECT id, moment FROM days ORDER BY moment DESC NULLS LAST, id LIMIT 4;
SELECT id, zoned FROM days ORDER BY zoned DESC NULLS FIRST, id LIMIT 12;
SELECT DISTINCT extract(year FROM e) FROM days;
SELECT count(DISTINCT d), count(DISTINCT e), count(DISTINCT CAST(moment AS DATE)) FROM days;
SELECT count(*) FROM days AS one JOIN days AS other ON one.d = other.e;
SELECT count(*) FROM days AS one JOIN days AS other ON CAST(one.moment AS DATE) = other.d;
SELECT id, d, lag(d) OVER (ORDER BY id) FROM days WHERE id < 8 ORDER BY id;

-- Filters over many row groups, most of which the statistics rule out.
SELECT count(*), sum(k) FROM numbers WHERE day = DATE '2021-03-04';
SELECT count(*), sum(k) FROM numbers WHERE day >= DATE '2022-09-01';
SELECT count(*), sum(k) FROM numbers WHERE day < DATE '2020-01-03';
SELECT count(*) FROM numbers WHERE day < DATE '2019-12-31' OR day > DATE '2030-01-01';
SELECT count(*), sum(k) FROM numbers WHERE day BETWEEN DATE '2020-11-23' AND DATE '2020-11-25';
SELECT count(*), min(id), max(id) FROM numbers WHERE moment >= TIMESTAMP '2021-01-01 00:00:00' AND moment < TIMESTAMP '2021-01-02 00:00:00';
SELECT extract(year FROM day) AS y, extract(quarter FROM day) AS q, count(*), sum(small) FROM numbers GROUP BY y, q ORDER BY y, q;
SELECT CAST(date_trunc('month', day) AS DATE) AS m, count(*), sum(price) FROM numbers WHERE g = 5 GROUP BY m ORDER BY m;
SELECT day, count(*) FROM numbers GROUP BY day ORDER BY day DESC LIMIT 3;
SELECT extract(hour FROM moment) AS h, count(*) FROM numbers GROUP BY h ORDER BY h;
