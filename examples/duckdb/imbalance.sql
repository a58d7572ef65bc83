-- The memory of the ranks in each of 20 parts of a run's time: the lowest, the mean and the highest rank.
WITH runs AS (
    SELECT run, min(start_unix_ns) AS begin_ns,
           CAST(floor((max(start_unix_ns + end_ns) - min(start_unix_ns)) / 20) AS BIGINT) + 1 AS part_ns
    FROM summary
    GROUP BY run
), parts AS (
    SELECT run, n AS part, begin_ns + n * part_ns AS from_ns, begin_ns + (n + 1) * part_ns AS until_ns, part_ns
    FROM runs
    CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15), (16),
                       (17), (18), (19)) AS numbers(n)
), of_devices AS (
    SELECT t.run, t.part, t.part_ns, p.rank, p.process, p.device, max(p.highest_bytes) AS bytes
    FROM samples p
    JOIN parts t ON t.run = p.run AND p.unix_ns < t.until_ns AND p.unix_ns + (p.until_ns - p.from_ns) > t.from_ns
    WHERE p.source = 'events' AND p.level = 'driver' AND p.stack IS NULL
    GROUP BY 1, 2, 3, 4, 5, 6
), of_ranks AS (
    SELECT run, part, part_ns, rank, CAST(sum(bytes) AS BIGINT) AS bytes
    FROM of_devices
    GROUP BY run, part, part_ns, rank
), ordered AS (
    SELECT run, part, part_ns, rank, bytes,
           row_number() OVER (PARTITION BY run, part ORDER BY bytes DESC, rank) AS place
    FROM of_ranks
)
SELECT run, part,
       round(part * part_ns / 1e9, 3) AS from_s,
       count(*) AS ranks,
       min(bytes) AS lowest_bytes,
       CAST(round(avg(bytes)) AS BIGINT) AS mean_bytes,
       max(bytes) AS highest_bytes,
       max(CASE WHEN place = 1 THEN rank END) AS highest_rank,
       round(max(bytes) / avg(bytes), 3) AS highest_over_mean
FROM ordered
GROUP BY run, part, part_ns
ORDER BY run, part
