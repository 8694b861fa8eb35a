-- Begin a file: its record, which is nobody's until the file is whole. KEYS: none.
-- ARGV: 1 id, 2 ms until it is given up where no part comes, then fields and values of the record.
-- Returns {}. Said twice it is the same file, without parts.
local file = 'hr:file:' .. ARGV[1]
redis.call('HLEN', file)
redis.call('HSET', file, 's', 'w', 'b', 0, unpack(ARGV, 3))
redis.call('PEXPIRE', file, ARGV[2])
return {}
