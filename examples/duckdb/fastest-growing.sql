-- The lines whose memory grows fastest, over all ranks: what they held at least in the last quarter of the run, less
-- what they held at least in the second quarter.
WITH ends AS (
    SELECT run, rank, process, max(end_ns) AS end_ns
    FROM summary
    GROUP BY run, rank, process
), quarters AS (
    SELECT p.run, p.rank, p.process, p.level, p.stack, p.device, e.end_ns,
           min(CASE WHEN p.until_ns > e.end_ns * 0.25 AND p.from_ns < e.end_ns * 0.5 THEN p.lowest_bytes END) AS early,
           min(CASE WHEN p.until_ns > e.end_ns * 0.75 THEN p.lowest_bytes END) AS late
    FROM samples p
    JOIN ends e ON e.run = p.run AND e.rank = p.rank AND e.process = p.process
    WHERE p.source = 'events' AND p.stack IS NOT NULL
    GROUP BY 1, 2, 3, 4, 5, 6, 7
)
SELECT q.run, q.level,
       coalesce(s.line, s.function, 'not known') AS line,
       CAST(sum(late - coalesce(early, 0)) AS BIGINT) AS grew_bytes,
       CAST(sum(CAST(round((late - coalesce(early, 0)) / (CAST(q.end_ns AS DOUBLE) / 2) * 3.6e12) AS BIGINT)) AS BIGINT) AS bytes_an_hour,
       count(DISTINCT q.rank) AS ranks
FROM quarters q
LEFT JOIN stacks s ON s.run = q.run AND s.rank = q.rank AND s.process = q.process AND s.stack = q.stack
WHERE late > coalesce(early, 0)
GROUP BY 1, 2, 3
ORDER BY grew_bytes DESC, q.level, line
LIMIT 20
