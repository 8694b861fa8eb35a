-- @include waiting
-- Requeue dead letters at the end of their list, as the jobs that they were. KEYS: the queue's. ARGV: 1 queue, then names
-- of dead letters. Returns per name: queued, unknown, unreadable (it is no job that could run), or alive (a job of its id
-- waits or runs, or a later job of its id has ended).
check_types(true)
local prefix = keys.letters .. ARGV[1] .. ':'
-- How long the stored input of a requeued job without a record is kept for its claim.
local UNCLAIMED_S = 30 * 86400

local function requeue(name)
  local found = try('HMGET', prefix .. name, 'raw', 'id', 'step', 'created')
  local raw, id, step, born = found[1], found[2], found[3], found[4]
  if found.err or not raw then
    call('ZREM', KEYS[10], name)
    return 'unknown'
  end
  if not id or id == '' then return 'unreadable' end
  local state, owner, created = unpack(read(id, 's', 'ky', 'c'))
  -- The message of a cancelled job of that id is still in a list, and its tomb entry would drop this one instead.
  if (state and not FINAL[state]) or call('HEXISTS', KEYS[11], id) == 1 then return 'alive' end
  -- A dead letter outlives its job's record. If another job has the id by now, perhaps of another model, it must not lose
  -- its result.
  if created and created ~= born then return 'alive' end
  local s = STEP_INDEX[step or '0'] or 1
  call('ZREM', KEYS[10], name)
  call('UNLINK', prefix .. name)
  requeue_job(ARGV[1], s, id, raw, state, owner)
  if not state then
    -- Its input in the payload store is needed until it has run, so the record names it.
    local ref = string.match(raw, '"ref":"(%l[%l%d]*:%x+)"')
    -- If the record's key has another type, the claim reports it.
    if ref and type(try('HSET', keys.job .. id, 'ir', ref)) == 'number' then
      call('EXPIRE', keys.job .. id, UNCLAIMED_S)
    end
  end
  return 'queued'
end

local answer = {}
for i = 2, #ARGV do answer[i - 1] = requeue(ARGV[i]) end
return answer
