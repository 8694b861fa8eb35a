-- Read failures of a model that a client does not know yet, the oldest first. KEYS: none.
-- ARGV: 1 model, 2 the oldest time that counts, 3 the time of the newest that is known, 4 how many to return at most.
-- Returns {how many count, when the oldest of them failed ('': none), one text with a line per failure since 3: when it
-- failed, and its entry}. A client reads the text ten times as fast as rows.
local index, from = keys.failures .. ARGV[1], ARGV[2]
local rows = call('ZRANGEBYSCORE', index, ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local lines = {}
for i = 1, #rows, 2 do lines[#lines + 1] = rows[i + 1] .. ' ' .. rows[i] end
local oldest = call('ZRANGEBYSCORE', index, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {call('ZCOUNT', index, from, '+inf'), oldest[2] or '', table.concat(lines, '\n')}
