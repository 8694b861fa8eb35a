-- @include callbacks, order, failure
-- Ending a job.
-- Ids are part of key names and of JSON: printable ASCII without quotes and backslashes.
local function valid_id(id)
  return type(id) == 'string' and #id > 0 and #id <= 128 and not string.find(id, '[^%w%-_%.:@/]')
end

local function iso_now()
  -- civil date from days since 1970-01-01 (proleptic Gregorian, H. Hinnant's days algorithm)
  local s = tonumber(time[1])
  local days, rest = math.floor(s / 86400), s % 86400
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06d+00:00', year, month, day,
    math.floor(rest / 3600), math.floor(rest % 3600 / 60), rest % 60, tonumber(time[2]))
end

-- The Celery result of a job that a script ends by itself. `result` is JSON text of constants that need no escaping, and
-- `id` needs none either: the claim or the submit has checked it. `traceback` is text, or nil.
local function meta_json(id, status, result, traceback)
  return '{"status": "' .. status .. '", "result": ' .. result
    .. ', "traceback": ' .. (traceback and cjson.encode(traceback) or 'null') .. ', "children": [], "date_done": "' .. iso_now() .. '", "task_id": "' .. id .. '"}'
end

-- `class` is a class of headrace.errors; `message` needs no escaping in JSON.
local function failed_json(id, class, message, traceback)
  return meta_json(id, 'FAILURE',
    '{"exc_type": "' .. class .. '", "exc_message": ["' .. message .. '"], "exc_module": "headrace.errors"}', traceback)
end

-- Counts ended jobs of an API key. If its count was lost with records, it starts again at 0.
local function end_in_flight(owner, count)
  local left = try('HINCRBY', keys.IN_FLIGHT, owner, -count)
  if type(left) == 'number' and left <= 0 then call('HDEL', keys.IN_FLIGHT, owner) end
end

-- Adds to a counter of a queue's model, in the same call as the event that it counts. A key of another type does no harm.
local function add_to_counter(queue, field, n)
  try('HINCRBY', keys.stats .. string.match(queue, '^[^@]*', #keys.queue_name + 1), field, n)
end

-- Counts `n` jobs of a queue that ended in this way, or that wait for a retry, in the call that does it. So each is
-- counted once, whatever happens to the reply or to the caller.
local function count_ended(queue, word, n) add_to_counter(queue, 'ended:' .. word, n) end

-- Ends a job: its record and its result, both with their TTL, both publications, and the counter. `fields` is a flat
-- list for HSET that begins with the state. `ttl` is nil for the default, `raw` its message, if that still exists, and
-- `used` how many tokens it used, nil if that is unknown.
local function finish(id, ttl, waiter, meta, fields, queue, raw, used)
  local job = keys.job .. id
  ttl = ttl or keys.DEFAULT_TTL_S
  call('HSET', job, unpack(fields))
  if fields[2] == 'f' then ttl = note_failure(queue, id, ttl, fields[6], raw) end
  call('EXPIRE', job, ttl)
  call('SET', keys.meta .. id, meta, 'EX', ttl)
  call('PUBLISH', keys.meta .. id, meta)
  if waiter and waiter ~= keys.NO_WAITER then
    call('PUBLISH', keys.done_channel .. waiter, cmsgpack.pack({{id}}))
  end
  -- The next sweep looks at an input in the payload store; perhaps no worker knew of it.
  local input, model, owner, events, stages, pieces, tokens, attempts =
    unpack(call('HMGET', job, 'ir', 'm', 'ky', 'we', 'sg', 'pc', 'tk', 'a'))
  if pieces then call('EXPIRE', keys.pieces .. id, ttl) end
  if owner then end_in_flight(owner, 1) end
  -- What has never run has used nothing.
  if (attempts or '0') == '0' then used = 0 end
  if tokens then end_tokens(queue, id, tokens, false, owner, used) end
  if events then send_webhook_task(id, events, fields[2], owner) end
  if input and model then try('ZADD', keys.PAYLOADS, 'XX', NOW, input .. ' ' .. id .. ' ' .. model .. ' i') end
  if raw or stages then save_orphaned_end(queue, id, raw or '', meta, stages) end
  count_ended(queue, FINAL[fields[2]], 1)
end

-- As finish, for an error: `code` is the code of the class.
local function finish_failed(id, ttl, waiter, class, code, message, fields, queue, raw, traceback)
  local all = {'s', 'f', 'en', NOW, 'e', '{"type":"' .. code .. '","message":"' .. message .. '","retryable":false}'}
  for i = 1, #fields do all[6 + i] = fields[i] end
  finish(id, ttl, waiter, failed_json(id, class, message, traceback), all, queue, raw)
end

local function finish_cancelled(id, ttl, waiter, queue, raw, used)
  finish(id, ttl, waiter, meta_json(id, 'REVOKED', REVOKED), {'s', 'c', 'en', NOW}, queue, raw, used)
end

-- Undoes the start of a leased job that will not run: its start time and its attempt. Returns its attempts.
local function undo_start(id, attempts)
  local before = whole(math.max(0, (tonumber(attempts or '0') or 0) - 1))
  call('HDEL', keys.job .. id, 'st')
  call('HSET', keys.job .. id, 'a', before)
  return before
end

-- The dead letters of a queue: kept for this long, and this many of them, the newest.
local LETTER_TTL_S, LETTERS_MAX = 1209600, 100000

-- Adds a message to the dead letters, under a name that no other has. `r` is what is known of its job, {id, step,
-- attempts, created, traceback}; without an id the message is no job that could run.
local function add_dead_letter(queue, name, token, reason, raw, message, r)
  local prefix = keys.letters .. queue .. ':'
  if call('EXISTS', prefix .. name) == 1 then name = name .. '.' .. token end
  call('ZADD', KEYS[10], NOW, name)
  call('HSET', prefix .. name, 'reason', reason, 'raw', raw, 'at', NOW, 'error', message, 'id', r.id or '',
    'step', r.step or '0', 'attempts', r.attempts or '0', 'created', r.created or NOW, 'traceback', r.traceback or '')
  call('EXPIRE', prefix .. name, LETTER_TTL_S)
  add_to_counter(queue, 'dead', 1)
  call('ZREMRANGEBYSCORE', KEYS[10], '-inf', whole(NOW_US - LETTER_TTL_S * 1e6))
  local over = call('ZCARD', KEYS[10]) - LETTERS_MAX
  if over > 0 then
    for _, old in ipairs(call('ZRANGE', KEYS[10], 0, over - 1)) do call('UNLINK', prefix .. old) end
    call('ZREMRANGEBYRANK', KEYS[10], 0, over - 1)
  end
end
