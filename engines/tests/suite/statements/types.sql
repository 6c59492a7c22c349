-- Every type that far tables support: values come back as they were put, and can be compared and counted.

--! for c: b | i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | d5 | d9 | d18 | d38 | dt | ts_s | ts_ms | ts_us | ts_ns | tz_s | tz_us | tz_ns | txt | bin | fix
SELECT id, {c} FROM kinds WHERE id < 18 ORDER BY id;

--! for c: b | i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | d5 | d9 | d18 | d38 | dt | ts_s | ts_ms | ts_us | ts_ns | tz_s | tz_us | tz_ns | txt | bin | fix
SELECT count(*), count({c}), count(DISTINCT {c}) FROM kinds;

--! for c: i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | d5 | d9 | d18 | d38 | dt | ts_s | ts_ms | ts_us | ts_ns | tz_s | tz_us | tz_ns | txt
SELECT min({c}), max({c}) FROM kinds;

--! for c: i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | d5 | d9 | d18 | d38 | dt | ts_s | ts_ms | ts_us | ts_ns | tz_s | tz_us | tz_ns | txt | bin
SELECT id, {c} FROM kinds WHERE {c} IS NOT NULL ORDER BY {c} DESC, id LIMIT 3;

--! for c: i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | d5 | d9 | d18 | d38 | dt | ts_s | ts_us | ts_ns | tz_us | txt | bin | fix
SELECT count(*) FROM kinds AS one, kinds AS other WHERE one.id = 40 AND other.{c} >= one.{c};

--! for c: i8 | i16 | i32 | u8 | u16 | u32 | f32 | f64 | d5 | d9 | d18
SELECT sum({c}) FROM kinds;

-- Literals at the ends of the ranges.
SELECT count(*) FROM kinds WHERE i8 = -128 OR i8 = 127;
SELECT count(*) FROM kinds WHERE i16 = -32768 OR i16 = 32767;
SELECT count(*) FROM kinds WHERE i32 = -2147483648 OR i32 = 2147483647;
SELECT count(*) FROM kinds WHERE i64 = 9223372036854775807;
SELECT count(*) FROM kinds WHERE u8 = 255;
SELECT count(*) FROM kinds WHERE u16 = 65535;
SELECT count(*) FROM kinds WHERE u32 = 4294967295;
SELECT count(*) FROM kinds WHERE u64 = 18446744073709551615;
SELECT id, u64 FROM kinds WHERE u64 > 9223372036854775807 ORDER BY u64, id LIMIT 4;

-- Literals beyond the range of the column.
SELECT count(*) FROM kinds WHERE i8 < 1000;
SELECT count(*) FROM kinds WHERE i8 > 1000;
SELECT count(*) FROM kinds WHERE u8 > -1;
SELECT count(*) FROM kinds WHERE u16 < -5;
SELECT count(*) FROM kinds WHERE u32 = -1;
SELECT count(*) FROM kinds WHERE i16 <> 70000;

-- One type compared with another.
SELECT count(*) FROM kinds WHERE i8 < i16;
SELECT count(*) FROM kinds WHERE i32 < i64;
SELECT count(*) FROM kinds WHERE u8 <= i16;
SELECT count(*) FROM kinds WHERE i8 = u8;
SELECT count(*) FROM kinds WHERE i32 > f64;
SELECT count(*) FROM kinds WHERE i16 < d9;
SELECT count(*) FROM kinds WHERE d5 < d9;
SELECT count(*) FROM kinds WHERE d9 < d18;
SELECT count(*) FROM kinds WHERE f32 < f64;
SELECT count(*) FROM kinds WHERE f32 = f64;
SELECT count(*) FROM kinds WHERE dt < ts_us;
SELECT count(*) FROM kinds WHERE ts_s <= ts_us;
SELECT count(*) FROM kinds WHERE ts_ms > ts_s;
SELECT count(*) FROM kinds WHERE ts_us <> ts_ns;
SELECT count(*) FROM kinds WHERE tz_us > tz_s;

-- Text as a literal of another type.
SELECT id FROM kinds WHERE dt = DATE '1970-02-04' ORDER BY id;
SELECT count(*) FROM kinds WHERE dt >= '1980-01-01' AND dt < '1990-01-01';
SELECT count(*) FROM kinds WHERE ts_s > TIMESTAMP '2003-01-01 00:00:00';
SELECT count(*) FROM kinds WHERE ts_ms > TIMESTAMP '2003-01-01 00:00:00';
SELECT count(*) FROM kinds WHERE ts_us > TIMESTAMP '2003-01-01 12:34:56.789012';
SELECT count(*) FROM kinds WHERE ts_ns > TIMESTAMP '2003-01-01 00:00:00';
SELECT count(*) FROM kinds WHERE tz_us > TIMESTAMP '2003-01-01 00:00:00+00:00';

-- Booleans.
SELECT id FROM kinds WHERE b AND id < 30 ORDER BY id;
SELECT id FROM kinds WHERE NOT b AND id < 20 ORDER BY id;
SELECT b, count(*) FROM kinds GROUP BY b;
SELECT count(*) FROM kinds WHERE b = true;
SELECT count(*) FROM kinds WHERE b <> true;
SELECT count(*) FROM kinds WHERE b IS TRUE;
SELECT count(*) FROM kinds WHERE b IS NOT TRUE;
SELECT count(*) FROM kinds WHERE b IS FALSE;
SELECT bool_and(b), bool_or(b) FROM kinds;
SELECT id, b FROM kinds WHERE id < 12 ORDER BY b NULLS FIRST, id;

-- Binary.
SELECT count(*) FROM kinds WHERE bin = X'02FD';
SELECT bin, count(*) FROM kinds WHERE id < 24 GROUP BY bin;
SELECT fix, id FROM kinds WHERE id BETWEEN 4 AND 9 ORDER BY fix NULLS LAST;
SELECT count(*) FROM kinds WHERE bin = X'';
SELECT count(DISTINCT bin), count(DISTINCT fix) FROM kinds WHERE id % 2 = 0;

-- Types as keys of groups.
--! for c: i8 % 4 | u8 % 4 | i16 % 3 | u32 % 5 | i64 % 3 | u64 % 3
SELECT {c} AS k, count(*) FROM kinds GROUP BY k;
SELECT dt, count(*) FROM kinds WHERE id % 37 = 0 GROUP BY dt;
SELECT ts_s, count(*) FROM kinds WHERE id % 37 = 0 GROUP BY ts_s;
SELECT tz_ns, count(*) FROM kinds WHERE id % 37 = 0 GROUP BY tz_ns;
SELECT d38, count(*) FROM kinds WHERE id % 37 = 0 GROUP BY d38;
SELECT f32, count(*) FROM kinds WHERE f32 BETWEEN 0 AND 2 GROUP BY f32;

-- Casts between types, where nothing is lost.
SELECT id, CAST(i8 AS BIGINT), CAST(i16 AS INTEGER), CAST(u8 AS SMALLINT), CAST(u32 AS BIGINT) FROM kinds WHERE id < 9 ORDER BY id;
SELECT id, CAST(i32 AS DOUBLE), CAST(u8 AS REAL), CAST(f32 AS DOUBLE) FROM kinds WHERE id < 14 ORDER BY id;
SELECT id, CAST(i16 AS DECIMAL(12, 3)), CAST(u32 AS DECIMAL(20, 0)), CAST(d5 AS DECIMAL(9, 2)) FROM kinds WHERE id < 14 ORDER BY id;
SELECT id, CAST(i64 AS VARCHAR), CAST(u64 AS VARCHAR), CAST(b AS VARCHAR), CAST(dt AS VARCHAR) FROM kinds WHERE id < 14 ORDER BY id;
SELECT id, CAST(d9 AS VARCHAR), CAST(d38 AS VARCHAR) FROM kinds WHERE id < 12 ORDER BY id;
SELECT id, CAST(CAST(i32 AS VARCHAR) AS INTEGER) = i32 FROM kinds WHERE id < 12 ORDER BY id;
SELECT id, CAST(dt AS TIMESTAMP), CAST(ts_us AS DATE), CAST(ts_s AS DATE) FROM kinds WHERE id < 16 ORDER BY id;
SELECT id, CAST(ts_s AS TIMESTAMP), CAST(ts_ms AS TIMESTAMP) FROM kinds WHERE id < 18 ORDER BY id;
SELECT id, CAST(b AS INTEGER) FROM kinds WHERE id < 9 ORDER BY id;
SELECT TRY_CAST('12' AS INTEGER), TRY_CAST('twelve' AS INTEGER), TRY_CAST('300' AS TINYINT), TRY_CAST('2024-02-30' AS DATE);
--! for bad: CAST('twelve' AS INTEGER) | CAST('2024-02-30' AS DATE) | CAST(300 AS TINYINT) | CAST(-1 AS INTEGER UNSIGNED) | CAST('yes!' AS BOOLEAN)
--! error
SELECT {bad};
--! error
SELECT CAST(txt AS INTEGER) FROM kinds;
--! error
SELECT nowhere FROM kinds;
--! error
SELECT * FROM no_such_table;
--! error
SELECT id FROM kinds WHERE txt + 1 = dt;
--! error
SELECT sum(txt) FROM kinds;
