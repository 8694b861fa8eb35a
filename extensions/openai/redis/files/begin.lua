-- Begin a file: its record, which no client sees until the file is finished. KEYS: none.
-- ARGV: 1 id, 2 ms after which it expires if no part comes, then fields and values of the record.
-- Returns {}. A repeat begins the same file again, without parts.
local file = keys.file .. ARGV[1]
redis.call('HLEN', file)
redis.call('HSET', file, 's', 'w', 'b', 0, unpack(ARGV, 3))
redis.call('PEXPIRE', file, ARGV[2])
return {}
