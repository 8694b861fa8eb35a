-- @include list_id
-- Finish a file: from now on clients see it. KEYS: none.
-- ARGV: 1 file, 2 its purpose, 3 for how many seconds it is kept.
-- Returns its record, as HGETALL; {} if it is unknown. A repeat changes nothing.
local file = keys.file .. ARGV[1]
local lists = lists_of(keys.FILES, keys.files_of, redis.call('HGET', file, 'k') or '')
check_lists(lists)
if redis.call('HGET', file, 's') == 'w' then
  local expires = whole(time[1] + tonumber(ARGV[3]))
  redis.call('HSET', file, 's', 'p', 'u', ARGV[2], 'c', time[1], 'x', expires)
  for _, key in ipairs({file, file .. ':parts'}) do redis.call('EXPIREAT', key, expires) end
  list_id(lists, ARGV[1], keys.file)
end
return redis.call('HGETALL', file)
