-- Ending a job and giving one back: put after lib/keys.lua for the scripts that do either.
-- Ids stand in key names and in JSON: printable ASCII without quotes and backslashes.
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

-- The Celery result of a job that a script ends by itself. `result` is JSON text made of constants and of
-- what needs no escaping, and so is `id`: it was checked by the claim or by whoever submitted it.
local function meta_json(id, status, result)
  return '{"status": "' .. status .. '", "result": ' .. result
    .. ', "traceback": null, "children": [], "date_done": "' .. iso_now() .. '", "task_id": "' .. id .. '"}'
end

-- How long it is kept in mind that the end of a job is still to be told.
local UNTOLD_TTL_S = 31 * 86400

-- How the body of a stock client's message ends after which nothing follows: `{"callbacks": null, "errbacks": null,
-- "chain": null, "chord": null}]` in base64, by how what stands before it fills the last three bytes. A quote cannot stand
-- outside of a string, so that where JSON ends so, this is its last object and whole.
local FOLLOWED_BY_NOTHING = {
  'IHsiY2FsbGJhY2tzIjogbnVsbCwgImVycmJhY2tzIjogbnVsbCwgImNoYWluIjogbnVsbCwgImNob3JkIjogbnVsbH1d',
  'LCB7ImNhbGxiYWNrcyI6IG51bGwsICJlcnJiYWNrcyI6IG51bGwsICJjaGFpbiI6IG51bGwsICJjaG9yZCI6IG51bGx9XQ==',
  'eyJjYWxsYmFja3MiOiBudWxsLCAiZXJyYmFja3MiOiBudWxsLCAiY2hhaW4iOiBudWxsLCAiY2hvcmQiOiBudWxsfV0=',
}

-- Whether nothing follows the job of a message, as far as that is seen without reading its body: of all that Celery does
-- not write just so, something may.
local function nothing_follows(raw)
  if string.sub(raw, 1, #OWN_HEAD) == OWN_HEAD and string.sub(raw, -#OWN_TAIL) == OWN_TAIL then return true end
  local ok, m = pcall(cjson.decode, raw)
  if not ok or type(m) ~= 'table' then return false end
  local h, p, body = m['headers'], m['properties'], m['body']
  if type(h) ~= 'table' or type(p) ~= 'table' or type(body) ~= 'string' then return false end
  local plain = m['content-encoding'] == 'utf-8' and (h['compression'] or cjson.null) == cjson.null
  if not plain or p['body_encoding'] ~= 'base64' then return false end
  for _, tail in ipairs(FOLLOWED_BY_NOTHING) do
    if string.sub(body, -#tail) == tail then return true end
  end
  return false
end

-- What follows a job (a chain, a chord, links) is told of its end by a worker, since only that can read it in the
-- message and can send it. A script that ends a job by itself leaves both to the sweeps. Another type under these keys
-- hinders no script.
local function leave_untold(queue, id, raw, meta)
  if nothing_follows(raw) then return end
  local untold, ends = 'hr:untold:' .. queue, 'hr:ends:' .. queue
  if type(redis.pcall('HSET', ends, id, #meta .. ':' .. meta .. raw)) == 'table' then return end
  if type(redis.pcall('ZADD', untold, NOW, id)) == 'table' then return end
  redis.call('EXPIRE', ends, UNTOLD_TTL_S)
  redis.call('EXPIRE', untold, UNTOLD_TTL_S)
end

-- So many jobs of an API key have ended. Who counts more ends than submits (records were lost, and the count with them)
-- counts from none.
local function landed(owner, count)
  local left = redis.pcall('HINCRBY', IN_FLIGHT, owner, -count)
  if type(left) == 'number' and left <= 0 then redis.call('HDEL', IN_FLIGHT, owner) end
end

-- Counts for a queue's model, in the call that does what is counted. Another type under the key hinders nothing.
local function tally(queue, field, n)
  redis.pcall('HINCRBY', 'hr:stats:' .. string.sub(queue, #'headrace.' + 1), field, n)
end

-- Counts `n` jobs of a queue that have ended so, or were put off for a retry, in the call that does it: so each is counted
-- once, whatever becomes of the answer or of who has called.
local function count(queue, word, n) tally(queue, 'ended:' .. word, n) end

-- Sends the errand that tells a webhook of a job's end, as the submit has written it, where `events` has the letter of the
-- state; how it has ended is noted, as the record may be gone by then. Another type under the keys hinders nothing.
local function tell_webhook(id, events, state)
  local errand = string.find(events, state, 1, true) and redis.call('HGET', JOB .. id, 'wh')
  if not errand then return end
  redis.pcall('HSET', HOOK .. id, 's', state, 'en', NOW)
  redis.pcall('EXPIRE', HOOK .. id, HOOK_TTL_S)
  redis.pcall('LPUSH', ERRANDS, errand)
end

-- Ends a job: record, result, both on their TTL, both publications and the counter. `fields` is a flat list for HSET that
-- begins with the state; `raw` is its message, where that is still there.
local function finish(id, ttl, waiter, meta, fields, queue, raw)
  local job = JOB .. id
  redis.call('HSET', job, unpack(fields))
  redis.call('EXPIRE', job, ttl)
  redis.call('SET', META .. id, meta, 'EX', ttl)
  redis.call('PUBLISH', META .. id, meta)
  if waiter and waiter ~= NOBODY then redis.call('PUBLISH', DONE .. waiter, cmsgpack.pack({{id}})) end
  -- An input in the payload store is looked at by the next sweep; no worker may have known of it.
  local input, model, owner, events = unpack(redis.call('HMGET', job, 'ir', 'm', 'ky', 'we'))
  if owner then landed(owner, 1) end
  if events then tell_webhook(id, events, fields[2]) end
  if input and model then redis.pcall('ZADD', PAYLOADS, 'XX', NOW, input .. ' ' .. id .. ' ' .. model .. ' i') end
  if raw then leave_untold(queue, id, raw, meta) end
  count(queue, FINAL[fields[2]], 1)
end

-- `class` is a class of headrace.errors, `code` its code; `message` needs no escaping in JSON.
local function failed_json(id, class, message)
  return meta_json(id, 'FAILURE',
    '{"exc_type": "' .. class .. '", "exc_message": ["' .. message .. '"], "exc_module": "headrace.errors"}')
end

local function finish_failed(id, ttl, waiter, class, code, message, fields, queue, raw)
  local all = {'s', 'f', 'en', NOW, 'e', '{"type":"' .. code .. '","message":"' .. message .. '","retryable":false}'}
  for i = 1, #fields do all[6 + i] = fields[i] end
  finish(id, ttl, waiter, failed_json(id, class, message), all, queue, raw)
end

local function finish_cancelled(id, ttl, waiter, queue, raw)
  finish(id, ttl or DEFAULT_TTL_S, waiter, meta_json(id, 'REVOKED', REVOKED), {'s', 'c', 'en', NOW}, queue, raw)
end

-- A leased job turns out not to be run: its start and its attempt are taken back. Returns its attempts.
local function not_run(id, attempts)
  local before = whole(math.max(0, (tonumber(attempts or '0') or 0) - 1))
  redis.call('HDEL', JOB .. id, 'st')
  redis.call('HSET', JOB .. id, 'a', before)
  return before
end

-- Dead letters are kept for so long, and so many of a queue, oldest dropped first.
local LETTER_TTL_S, LETTERS_MAX = 1209600, 100000

-- Puts a message among the dead letters, under a name that no other letter has. `r` is what is known of its job,
-- {id, step, attempts, created, traceback}; without an id it is none that could run.
local function bury(queue, letter, token, reason, raw, message, r)
  local prefix = 'hr:letter:' .. queue .. ':'
  if redis.call('EXISTS', prefix .. letter) == 1 then letter = letter .. '.' .. token end
  redis.call('ZADD', KEYS[10], NOW, letter)
  redis.call('HSET', prefix .. letter, 'reason', reason, 'raw', raw, 'at', NOW, 'error', message, 'id', r.id or '',
    'step', r.step or '0', 'attempts', r.attempts or '0', 'created', r.created or NOW, 'traceback', r.traceback or '')
  redis.call('EXPIRE', prefix .. letter, LETTER_TTL_S)
  tally(queue, 'dead', 1)
  redis.call('ZREMRANGEBYSCORE', KEYS[10], '-inf', whole(NOW_US - LETTER_TTL_S * 1e6))
  local over = redis.call('ZCARD', KEYS[10]) - LETTERS_MAX
  if over > 0 then
    for _, old in ipairs(redis.call('ZRANGE', KEYS[10], 0, over - 1)) do redis.call('UNLINK', prefix .. old) end
    redis.call('ZREMRANGEBYRANK', KEYS[10], 0, over - 1)
  end
end

-- One more crash of a job that ran alone. Buries and ends it, and says so, once there were max_crashes.
local function charged_to_death(id, raw, max_crashes, queue, r)
  local crashes = (tonumber(r.crashes or '0') or 0) + 1
  redis.call('HSET', JOB .. id, 'k', crashes)
  if crashes < max_crashes then return false end
  local message = 'the model process died each of the ' .. crashes .. ' times that it ran this input alone'
  bury(queue, id, r.token, 'replica-lost', raw, message, r)
  finish_failed(id, r.ttl or DEFAULT_TTL_S, r.waiter, 'ReplicaLost', 'replica-lost', message, {'dl', '1'}, queue,
    raw)
  return true
end

-- How long a job waits that was lost alone: full jitter, as workers/jobs/retries.py has it. Lua's own random numbers are the
-- same in each call of a script.
local function loss_delay_us(id, token, crashes, base_us, most_us)
  local chance = tonumber(string.sub(redis.sha1hex(id .. ' ' .. (token or '') .. ' ' .. NOW), 1, 12), 16) / 2^48
  return math.floor(chance * math.min(most_us, base_us * 2^(crashes - 1)))
end

-- A job that was lost alone and charged waits among the delayed ones, or ends where it could then not begin in time.
-- Returns what became of it; false where it need not wait.
local function put_off_lost(id, raw, losses, queue, r)
  local base_us, most_us = string.match(r.backoff or '', '^(%d+) (%d+)$')
  if not base_us then base_us, most_us = string.match(losses, '^%d+ (%d+) (%d+)$') end
  if not base_us then return false end
  local crashes = (tonumber(r.crashes or '0') or 0) + 1
  local delay = loss_delay_us(id, r.token, crashes, tonumber(base_us), tonumber(most_us))
  if delay < 1 then return false end
  local begin_by = redis.pcall('ZSCORE', EXPIRING, id)
  if type(begin_by) == 'string' and NOW_US + delay > tonumber(begin_by) then
    finish_failed(id, r.ttl or DEFAULT_TTL_S, r.waiter, 'ReplicaLost', 'replica-lost',
      'the model process died while it ran this input alone, and the next try would come after its `expires`', {}, queue, raw)
    return 'dead'
  end
  redis.call('HSET', KEYS[9], id, raw)
  redis.call('ZADD', KEYS[8], whole(NOW_US + delay), id)
  redis.call('HSET', JOB .. id, 's', 'd', 'x', '1', 'e', '{"type":"replica-lost","message":"the model process died while it'
    .. ' ran this input alone, ' .. crashes .. ' time(s) so far","retryable":true}')
  redis.call('HDEL', JOB .. id, 't', 'st')
  count(queue, 'retried', 1)
  return 'delayed'
end

-- Puts a leased job back at the head of its list. mode: 'free' takes the attempt back (an orderly release);
-- 'alone' marks it to run alone, charging nothing; 'crash' also charges it if it did run alone, and then lets it wait.
-- losses: how often it may be lost alone and, with spaces between, base and bound in us of the wait in between (none: it
-- does not wait). The caller has tested the token and the types. Returns what became of the job.
local function give_back(id, mode, losses, queue)
  local raw = redis.call('HGET', KEYS[6], id)
  local state, step, alone, crashes, cancel, ttl, waiter, attempts, token, created, backoff =
    unpack(read(id, 's', 'p', 'x', 'k', 'cr', 'l', 'w', 'a', 't', 'c', 'rb'))
  local r = {id = id, step = step, crashes = crashes, ttl = ttl, waiter = waiter, token = token,
    attempts = attempts, created = created, backoff = backoff}
  redis.call('ZREM', KEYS[5], id)
  redis.call('HDEL', KEYS[6], id)
  if state and state ~= 'r' then return 'gone' end
  if cancel then
    if mode == 'free' then not_run(id, attempts) end
    finish_cancelled(id, ttl, waiter, queue, raw)
    return 'cancelled'
  end
  if not raw then
    -- Somebody removed the message from `held`; the job can never run, and its client is told.
    if state then
      finish_failed(id, ttl or DEFAULT_TTL_S, waiter, 'ReplicaLost', 'replica-lost',
        'the message of the job was removed from Redis while it was leased', {}, queue)
    end
    return 'gone'
  end
  if state and mode == 'crash' and alone then
    if charged_to_death(id, raw, tonumber(string.match(losses, '^%d+')), queue, r) then return 'dead' end
    local fate = put_off_lost(id, raw, losses, queue, r)
    if fate then return fate end
  end
  local s = STEP_INDEX[step or '0'] or 1
  redis.call('RPUSH', KEYS[s], raw)
  redis.call('HINCRBY', KEYS[7], 'out' .. STEPS[s], -1)
  -- Without a record (somebody deleted it) the message is as a stock client's: its claim makes a new one.
  if state then
    if mode == 'free' then
      redis.call('HSET', JOB .. id, 's', 'q', 'a', math.max(0, (tonumber(attempts or '0') or 0) - 1))
    else
      redis.call('HSET', JOB .. id, 's', 'q', 'x', '1')
    end
    redis.call('HDEL', JOB .. id, 't', 'st')
  end
  return 'queued'
end
