-- The ranks that failed, the first that was out of memory before all others: these often fail after it.
WITH starts AS (
    SELECT run, min(start_unix_ns) AS begin_ns
    FROM summary
    GROUP BY run
)
SELECT s.run, s.rank, s.host, s.pid, s.ended,
       round((max(s.failed_unix_ns) - max(t.begin_ns)) / 1e9, 6) AS at_s,
       CAST(sum(s.peak_bytes) AS BIGINT) AS peak_bytes,
       CAST(sum(s.refused_by_cap) AS BIGINT) AS refused_by_cap,
       CAST(sum(s.refused_by_driver) AS BIGINT) AS refused_by_driver
FROM summary s
JOIN starts t ON t.run = s.run
WHERE s.failed_unix_ns IS NOT NULL AND s.peak_bytes IS NOT NULL
GROUP BY s.run, s.rank, s.process, s.host, s.pid, s.ended
ORDER BY CASE WHEN s.ended = 'out_of_memory' THEN 0 ELSE 1 END, max(s.failed_unix_ns), s.rank
LIMIT 20
