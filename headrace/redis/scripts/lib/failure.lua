-- Failures: failed jobs that are kept for longer than results. docs/architecture/failures.md describes them.
-- How this call keeps them: for how many seconds, and how many of a model. None without `keep_failures`.
local KEPT_TRIM_MAX = 100
local kept_s, kept_most

-- Sets it from "<seconds> <how many>".
local function keep_failures(text)
  local seconds, most = string.match(text or '', '^(%d+) (%d+)$')
  if seconds and most ~= '0' then kept_s, kept_most = tonumber(seconds), tonumber(most) end
end

local function failure_entry(group, created, owner, id)
  return group .. ' ' .. (created or '0') .. ' ' .. (owner or '-') .. ' ' .. id
end

-- The group of an error, whose JSON is a record's `e`.
local function failure_group(err)
  local ok, object = pcall(cjson.decode, err)
  if not ok or type(object) ~= 'table' then object = {} end
  local function text(name) return type(object[name]) == 'string' and object[name] or '' end
  return string.sub(redis.sha1hex(text('type') .. '\n' .. text('exception') .. '\n' .. text('where')), 1, 12)
end

-- Removes a job from the failures of its model, with its message.
local function forget_failure(id)
  local group, created, owner, model = unpack(read(id, 'fg', 'c', 'ky', 'm'))
  if not group or not model then return end
  try('ZREM', keys.failures .. model, failure_entry(group, created, owner, id))
  call('UNLINK', keys.failed .. id)
  call('HDEL', keys.job .. id, 'fg')
end

-- Keeps the record of a job that has failed as long as a result, from its end.
local function keep_as_result(id, failed_us, ttl)
  local until_s = whole(math.floor((tonumber(failed_us) or NOW_US) / 1e6) + tonumber(ttl or keys.DEFAULT_TTL_S))
  for _, prefix in ipairs({keys.job, keys.meta, keys.pieces}) do call('EXPIREAT', prefix .. id, until_s) end
end

-- Lets the oldest failures of a model go. From then on a record is kept as a result is.
local function drop_oldest_failures(index)
  local over = math.min(call('ZCARD', index) - kept_most, KEPT_TRIM_MAX)
  if over <= 0 then return end
  local old = call('ZRANGE', index, 0, over - 1, 'WITHSCORES')
  for i = 1, #old, 2 do
    local id = string.match(old[i], '(%S+)$')
    local state, ttl = unpack(read(id, 's', 'l'))
    if state == 'f' then
      call('HDEL', keys.job .. id, 'fg')
      keep_as_result(id, old[i + 1], ttl)
      call('UNLINK', keys.failed .. id)
    end
  end
  call('ZREMRANGEBYRANK', index, 0, over - 1)
end

-- Adds a job that has failed to the failures of its model, with its message (nil: none) for a retry. Returns for how many
-- seconds its record is kept. A key of another type does no harm.
local function note_failure(queue, id, ttl, err, raw)
  if not kept_s then return ttl end
  local created, owner, waiter, stage, dead = unpack(read(id, 'c', 'ky', 'w', 'so', 'dl'))
  if waiter == keys.NO_WAITER or stage then return ttl end
  local index = keys.failures .. string.match(queue, '^[^@]*', #keys.queue_name + 1)
  local group = failure_group(err)
  if type(try('ZADD', index, NOW, failure_entry(group, created, owner, id))) == 'table' then return ttl end
  local kept = whole(math.max(kept_s, tonumber(ttl)))
  call('HSET', keys.job .. id, 'fg', group)
  if raw and not dead then call('SET', keys.failed .. id, raw, 'EX', kept) end
  call('EXPIRE', index, whole(kept_s))
  call('ZREMRANGEBYSCORE', index, '-inf', whole(NOW_US - kept_s * 1e6))
  drop_oldest_failures(index)
  return kept
end
