-- @include dead_letter
-- Releasing a leased job: back to its queue, or to its end after too many crashes.
-- Charges a crash to a job that ran alone. After max_crashes it becomes a dead letter and ends; returns whether it did.
local function end_after_crashes(id, raw, max_crashes, queue, r)
  local crashes = (tonumber(r.crashes or '0') or 0) + 1
  redis.call('HSET', JOB .. id, 'k', crashes)
  if crashes < max_crashes then return false end
  local message = 'the model process died each of the ' .. crashes .. ' times that it ran this input alone'
  add_dead_letter(queue, id, r.token, 'replica-lost', raw, message, r)
  finish_failed(id, r.ttl or DEFAULT_TTL_S, r.waiter, 'ReplicaLost', 'replica-lost', message, {'dl', '1'}, queue,
    raw)
  return true
end

-- The delay after a crash, with full jitter as in workers/jobs/retries.py. Lua's own random numbers are the same in each
-- call of a script.
local function crash_delay_us(id, token, crashes, base_us, most_us)
  local chance = tonumber(string.sub(redis.sha1hex(id .. ' ' .. (token or '') .. ' ' .. NOW), 1, 12), 16) / 2^48
  return math.floor(chance * math.min(most_us, base_us * 2^(crashes - 1)))
end

-- Schedules a job that was charged for a crash, or ends it if it could then not start in time. Returns what became of
-- it; false if it need not wait.
local function schedule_after_crash(id, raw, losses, queue, r)
  local base_us, most_us = string.match(r.backoff or '', '^(%d+) (%d+)$')
  if not base_us then base_us, most_us = string.match(losses, '^%d+ (%d+) (%d+)$') end
  if not base_us then return false end
  local crashes = (tonumber(r.crashes or '0') or 0) + 1
  local delay = crash_delay_us(id, r.token, crashes, tonumber(base_us), tonumber(most_us))
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
  count_ended(queue, 'retried', 1)
  return 'delayed'
end

-- Returns a leased job to the head of its list, and returns what became of it. The caller has checked the token and the
-- types.
-- mode: 'free' undoes the attempt (an orderly release); 'alone' makes the job run alone, and charges nothing; 'crash'
--       also charges a job that already ran alone, which then waits.
-- losses: how many crashes it survives alone and, with spaces between, base and limit in us of the wait after one
--       (without them it does not wait).
local function release(id, mode, losses, queue)
  local raw = redis.call('HGET', KEYS[6], id)
  local state, step, alone, crashes, cancel, ttl, waiter, attempts, token, created, backoff =
    unpack(read(id, 's', 'p', 'x', 'k', 'cr', 'l', 'w', 'a', 't', 'c', 'rb'))
  local r = {id = id, step = step, crashes = crashes, ttl = ttl, waiter = waiter, token = token,
    attempts = attempts, created = created, backoff = backoff}
  redis.call('ZREM', KEYS[5], id)
  redis.call('HDEL', KEYS[6], id)
  if state and state ~= 'r' then return 'gone' end
  if cancel then
    if mode == 'free' then undo_start(id, attempts) end
    finish_cancelled(id, ttl, waiter, queue, raw)
    return 'cancelled'
  end
  if not raw then
    -- Another program removed the message from `held`. The job can never run, so it ends with an error.
    if state then
      finish_failed(id, ttl or DEFAULT_TTL_S, waiter, 'ReplicaLost', 'replica-lost',
        'the message of the job was removed from Redis while it was leased', {}, queue)
    end
    return 'gone'
  end
  if state and mode == 'crash' and alone then
    if end_after_crashes(id, raw, tonumber(string.match(losses, '^%d+')), queue, r) then return 'dead' end
    local outcome = schedule_after_crash(id, raw, losses, queue, r)
    if outcome then return outcome end
  end
  local s = STEP_INDEX[step or '0'] or 1
  redis.call('RPUSH', KEYS[s], raw)
  redis.call('HINCRBY', KEYS[7], 'out' .. STEPS[s], -1)
  -- Without a record (it was deleted) the message is like a stock client's: its claim makes a new one.
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
