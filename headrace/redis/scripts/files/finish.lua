-- Finish a file: from now on clients see it. KEYS: none.
-- ARGV: 1 file, 2 its purpose, 3 for how many seconds it is kept, 4 for how many the list of files is kept.
-- Returns its record, as HGETALL; {} if it is unknown. A repeat changes nothing.
local file = 'hr:file:' .. ARGV[1]
redis.call('ZCARD', 'hr:files')
if redis.call('HGET', file, 's') == 'w' then
  local expires = whole(time[1] + tonumber(ARGV[3]))
  redis.call('HSET', file, 's', 'p', 'u', ARGV[2], 'c', time[1], 'x', expires)
  for _, key in ipairs({file, file .. ':parts'}) do redis.call('EXPIREAT', key, expires) end
  redis.call('ZADD', 'hr:files', 0, ARGV[1])
  redis.call('EXPIRE', 'hr:files', ARGV[4])
end
return redis.call('HGETALL', file)
